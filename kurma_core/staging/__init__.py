"""The stager engine: runs any image that implements the Kurma Stager Specification as a stager."""
