"""Which drafter goes with which target, where their files come from, and whether they are what they claim to be."""
