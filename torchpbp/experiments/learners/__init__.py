"""All learners on the same networks, rows and questions."""
