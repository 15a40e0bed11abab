"""The command ``kurma kube``: pods of Kubernetes files."""
