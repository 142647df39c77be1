"""Coding agents on the local server: which programs, with which settings, and the server they talk to."""
