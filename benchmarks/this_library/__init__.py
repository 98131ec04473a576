"""torchpbp's implementations, without matplotlib and Lightning, which are slow to import."""

from benchmarks.this_library.classification import Average, Features, KernelChain
from benchmarks.this_library.conversion import network_of, tables_of, tensors
from benchmarks.this_library.fitting import CountingAlone, EMFit, HmmEM, HmmPBP, PBPFit
from benchmarks.this_library.inference import ExactQueries, PBPQueries
from benchmarks.this_library.scaling import Point

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
