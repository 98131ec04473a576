"""Side-by-side timings; see README.md in this folder."""
