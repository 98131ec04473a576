"""Models learned from samples of the same random networks, or from the same real tables, and compared by a list of measures."""
