"""Forecasts the memory and step time of a training before it can be measured."""
