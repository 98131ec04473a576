"""Moments of features: joint counts and means of products, taken in passes over the rows."""
