"""splashlite doctor: what this machine and one pair are like, and what is wrong with them."""
