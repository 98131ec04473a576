"""Plots of models and results. Each function draws on ``ax``, by default on new axes, and returns the axes.

The caller closes the figure (``plt.close(ax.figure)``). matplotlib is imported by the functions, not by the package.
"""

from torchpbp.plotting.confusion import plot_confusion
from torchpbp.plotting.curves import plot_learning_curves
from torchpbp.plotting.diagnostics import plot_diagnostics
from torchpbp.plotting.posteriors import plot_posteriors
from torchpbp.plotting.profiles import plot_profiles
from torchpbp.plotting.trees import plot_junction_tree, plot_messages

__all__ = [
    "plot_confusion",
    "plot_diagnostics",
    "plot_junction_tree",
    "plot_learning_curves",
    "plot_messages",
    "plot_posteriors",
    "plot_profiles",
]
