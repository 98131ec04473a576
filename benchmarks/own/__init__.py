"""torchpbp's contestants. Free of matplotlib and Lightning, which take long to import."""

from benchmarks.own.asking import ExactQueries, PBPQueries
from benchmarks.own.classifying import Average, Features, KernelChain
from benchmarks.own.fitting import CountingAlone, EMFit, HmmEM, HmmPBP, PBPFit
from benchmarks.own.growing import Point
from benchmarks.own.networks import network_of, tables_of, tensors

__all__ = [
    "Average",
    "CountingAlone",
    "EMFit",
    "ExactQueries",
    "Features",
    "HmmEM",
    "HmmPBP",
    "KernelChain",
    "PBPFit",
    "PBPQueries",
    "Point",
    "network_of",
    "tables_of",
    "tensors",
]
