"""Fitting constants from measurements, predicting tables row by row, and scoring predictions."""
