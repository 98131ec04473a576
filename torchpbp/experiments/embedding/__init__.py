"""Pen digits read by a network with a PBP layer inside."""
