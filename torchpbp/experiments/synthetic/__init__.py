"""Learned posteriors against exact ones on random networks, by number of training rows."""
