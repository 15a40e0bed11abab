"""The packet filter of bridge networks: forwarding, masquerade and published ports, by nftables."""
