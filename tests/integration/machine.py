"""What the machine has on which the tests run."""


def has_apparmor() -> bool:
    """Whether its kernel has AppArmor, switched on."""
    try:
        with open("/sys/module/apparmor/parameters/enabled") as file:
            return file.read() == "Y\n"
    except FileNotFoundError:
        return False
