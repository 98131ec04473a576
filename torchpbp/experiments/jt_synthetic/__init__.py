"""Joint probabilities on four latent structures against the spectral algorithm and EM [JT 9.1]."""
