"""Agents: the launcher, its programs and the variables."""
