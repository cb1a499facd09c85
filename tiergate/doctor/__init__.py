"""Finds problems of an installation, each with a remedy. There is a module for each thing that it depends on."""
