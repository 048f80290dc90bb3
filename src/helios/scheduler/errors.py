"""The error tree of the core; every one is raised before the first change of state.

SchedulerError
├── InvalidPolicyError      a policy field is out of its range
├── InvalidCatalogError     a graph descriptor or the catalog as a whole is impossible
├── InvalidRequestError     a request can never be served as specified (too long, no pages, no slot)
├── QueueFullError          the bounded waiting queue has no room
├── UnknownHandleError      a handle was never issued, or its generation has passed
├── PhaseError              the call is not legal in the request's phase
├── StalePlanError          the plan no longer matches the state it was made from
├── FenceError              a fence is unknown, reused, or out of order
├── CompletionError         completion records contradict the committed plan
└── TimeError               time ran backwards
"""

from __future__ import annotations


class SchedulerError(Exception):
    """The caller broke the contract of the scheduler; nothing was changed."""


class InvalidPolicyError(SchedulerError):
    """A policy field is out of its range."""


class InvalidCatalogError(SchedulerError):
    """A graph descriptor, or the catalog as a whole, is impossible."""


class InvalidRequestError(SchedulerError):
    """The request can never be served as specified."""


class QueueFullError(SchedulerError):
    """The bounded waiting queue has no room; try again later."""


class UnknownHandleError(SchedulerError):
    """The handle was never issued, or its generation has passed."""


class PhaseError(SchedulerError):
    """The call is not legal in the request's current phase."""


class StalePlanError(SchedulerError):
    """The plan no longer matches the state it was made from."""


class FenceError(SchedulerError):
    """The fence is unknown, was used before, or is out of order."""


class CompletionError(SchedulerError):
    """Completion records contradict the committed plan."""


class TimeError(SchedulerError):
    """Time ran backwards."""
