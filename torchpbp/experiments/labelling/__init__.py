"""Sequence labelling: PBP, CRF and softmax heads on the same encoder."""
