"""Fitted selectors as programs that run without setgrad: `torch.export` and ONNX."""

from setgrad.export._encode import encode_table as encode_table
from setgrad.export._predictor import PaddedPredictor as PaddedPredictor
from setgrad.export._write import export_model as export_model
