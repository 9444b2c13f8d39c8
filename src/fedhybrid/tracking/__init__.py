"""Runs in the trackers that people have: callbacks for MLflow and TensorBoard, each an extra of its own.

from fedhybrid.tracking.tensorboard import TensorBoard
fh.solve(fleet, callbacks=[TensorBoard("runs/1")])
"""

CURVES = ("residual", "floats_up", "floats_down", "flops", "seconds")  # columns of the trace, by rounds
FIGURES = ("error_bound", "gradient_norm", "m_hat")  # of the result
