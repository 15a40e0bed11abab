"""Stager drivers. Here is the engine of the Kurma Stager Specification: any image that keeps to it is a stager."""
