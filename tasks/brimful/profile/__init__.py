"""A provider's limits, endpoints, fields and prices; and which provider is meant. Imported by all rooms above."""

from brimful.profile.choice import DEFAULT_PROVIDER, ProviderChoice, choose_provider, profile_in_use
from brimful.profile.prices import Price, Tokens, load_prices
from brimful.profile.profile import Profile, get_profile, load_profiles

__all__ = [
    "DEFAULT_PROVIDER",
    "Price",
    "Profile",
    "ProviderChoice",
    "Tokens",
    "choose_provider",
    "get_profile",
    "load_prices",
    "load_profiles",
    "profile_in_use",
]
