"""Splice junctions in DNA, classified by one generative model per class [JT 9.2]."""
