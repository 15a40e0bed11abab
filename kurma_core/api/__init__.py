"""The API: every operation, and the values that cross kurmad's socket, a module for each noun."""
