"""Runs pods: start steps and their undo, the owner process, recovery after its death, prestarted pods."""
