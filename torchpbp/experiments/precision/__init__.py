"""How precise learners are, and what it costs: moments against likelihood."""
