"""The contracts between the core and its plugins, one module for each kind.

A plugin is a module named by an entry point of one of six groups. It implements the one hook of its kind with
:data:`.hooks.hookimpl`; the hook takes no arguments and returns a :class:`.driver.Driver`: a factory, and the
    options
that the plugin's section of ``kurma.yml`` may hold. The core makes each driver at most once per process, when it
is first needed, and calls drivers one at a time, in configured order, undoing in reverse. Only observers are
called all at once.

Import from the modules: this package itself imports nothing, so that a command loads only the kinds that it needs.

====================  =========================  =========================================================
group                 hook                       what the factory makes
====================  =========================  =========================================================
``kurma.fetchers``    ``kurma_fetcher``          :class:`.fetcher.Fetcher`; the entry's name is a locator scheme
``kurma.renderers``   ``kurma_renderer``         :class:`.renderer.Renderer`
``kurma.stagers``     ``kurma_stager``           :class:`.stager.Stager`, :class:`.stager.StagerImageSource` or
                                                 :class:`.stager.StagerOfImages`
``kurma.networks``    ``kurma_network``          :class:`.network.Network`
``kurma.isolators``   ``kurma_isolator``         :class:`.isolator.Isolator`
``kurma.observers``   ``kurma_pod_event``        (the hook itself is the observer)
====================  =========================  =========================================================

A plugin that cannot work on this host raises :class:`kurma_core.errors.PluginSkipped` from its hook or factory.
"""
