"""Images as trees of patches: scikit-learn's digits with hidden patches."""
