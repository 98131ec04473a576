"""Networks with hidden variables learned by maximum likelihood, and the E-step that all learners of tables share."""
