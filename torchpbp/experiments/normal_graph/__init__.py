"""Four learning rules of normal graphs, compared on a single block, on one hidden variable and on a deeper graph [NG 6, 7]."""
