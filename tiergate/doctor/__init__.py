"""What is wrong with an installation, and what to do about it: a module for each thing that it stands on."""
