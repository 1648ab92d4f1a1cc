"""Exporters of the metrics of a log to monitoring systems."""
