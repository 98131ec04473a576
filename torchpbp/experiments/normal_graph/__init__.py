"""Four learning rules of normal graphs [NG 6, 7]."""
