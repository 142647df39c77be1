"""The pairs on this machine: splashlite models, pull, rm and show."""
