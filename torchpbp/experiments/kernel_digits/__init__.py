"""Pen digits by one generative model per digit, as in the PBP paper."""
