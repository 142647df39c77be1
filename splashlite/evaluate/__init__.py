"""Measuring: do texts agree, and how fast are they?"""
