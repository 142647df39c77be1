"""The drafters: DFlash and DFlash 2, exact to the published format, and their context."""

from splashlite.drafter.draft import Draft
from splashlite.drafter.load import load_drafter

__all__ = ["Draft", "load_drafter"]
