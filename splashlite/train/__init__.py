"""Training a drafter for one target: its data, its objective, its schedule, and the folder that comes out."""
