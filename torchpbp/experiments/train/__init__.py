"""Training of one network on data with leaves that may be hidden, beside a perceptron with the same encoder."""
