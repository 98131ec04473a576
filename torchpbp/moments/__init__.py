"""Moments of features: joint counts and means of products, computed in passes over the rows."""
