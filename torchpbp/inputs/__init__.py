"""Input: training tables and evidence, validated and converted to one form."""

from torchpbp.inputs.columns import ColumnReader
from torchpbp.inputs.evidence import Evidence, EvidenceLike, read_evidence
from torchpbp.inputs.missing_values import MissingValues, observed
from torchpbp.inputs.sources import DataLike

__all__ = ["ColumnReader", "DataLike", "Evidence", "EvidenceLike", "MissingValues", "observed", "read_evidence"]
