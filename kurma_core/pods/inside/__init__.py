"""Works inside running pods: enter, attach, logs, copying files, processes and usage."""
