"""Turns paths on and off: one for certain tasks is off while no model has any of them.

Models count that are configured, also while they are loading or have failed, or in service. Created by
`web.app.create_app`.
"""

from smallplates.web.api.dialect import Route, Routes
from smallplates.web.inference.service import InferenceService


class Mounts:
    """The routes of all dialects."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service
        self._models: object = None  # that the routes follow
        self._routes: dict[tuple[str, frozenset[str]], Route] = {}

    @property
    def routes(self) -> list[Route]:
        """The routes, in the order in which they were added."""
        return [*self._routes.values()]

    def add(self, routes: Routes) -> None:
        """Adds a dialect's routes; on an earlier dialect's path it answers the bodies that it claims."""
        for route in routes.routes:
            assert isinstance(route, Route)  # noqa: S101 the router's class of routes
            route.follow = self.follow
            first = self._routes.setdefault((route.path, frozenset(route.methods or ())), route)
            if first is not route and route.claim:
                first.others = (*first.others, route)

    def follow(self) -> None:
        """Brings the routes up to date if the models have changed; for the event loop only."""
        if self._models is not (models := self._service.models):
            self._models = models
            tasks = {model.description.task for model in self._service.known.values()}
            for route in self._routes.values():
                route.mount(tasks)
