"""REST: how fast each pool's engines are, where that is known from, and the operator's word."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from capacity.profiles import selectors, services
from console.accounts.selectors import Permission, actor_of, require
from console.rest.fields import (
    InstantField,
    OutSerializer,
    PageQuery,
    StrictFlag,
    StrictSerializer,
    StrictText,
)
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, shown, shown_rows


class ProfileRowSerializer(OutSerializer):
    """A pool's profile. Errors are of the step time over the last calibration's windows."""

    pool = serializers.CharField()
    model = serializers.CharField()
    prior = serializers.CharField(help_text="Name of what is assumed; empty: nothing is known")
    source = serializers.CharField()  # type: ignore[assignment] # the base has an argument so named
    is_fitted = serializers.BooleanField()
    is_pinned = serializers.BooleanField()
    version = serializers.IntegerField(allow_null=True, help_text="The fitted one in use")
    step_s = serializers.FloatField(allow_null=True, help_text="A step of one decode")
    windows = serializers.IntegerField()
    error_ratio = serializers.FloatField(allow_null=True, help_text="On windows it had not seen")
    prior_error_ratio = serializers.FloatField(allow_null=True)
    is_accepted = serializers.BooleanField()
    verdict = serializers.CharField()
    ran_at = InstantField(allow_null=True)


class TermSerializer(OutSerializer):
    """A term of the step time in `unit`; null where there is no such value."""

    name = serializers.CharField()
    words = serializers.CharField()
    unit = serializers.CharField()
    prior = serializers.FloatField(allow_null=True)
    fitted = serializers.FloatField(allow_null=True)
    refused = serializers.FloatField(allow_null=True)


class VersionSerializer(OutSerializer):
    """A fitted version; it holds for one revision of the pool."""

    number = serializers.IntegerField()
    revision = serializers.IntegerField()
    prior = serializers.CharField()
    windows = serializers.IntegerField()
    error_ratio = serializers.FloatField()
    prior_error_ratio = serializers.FloatField()
    created_at = InstantField()
    terms = TermSerializer(many=True)


class ProfileSerializer(OutSerializer):
    """One pool's profile with its terms. `skipped` counts windows that say nothing, by why."""

    row = ProfileRowSerializer()
    prior_source = serializers.CharField()
    prior_error = serializers.FloatField(
        allow_null=True, help_text="Of TPOT on published rows of such a pool; null: none"
    )
    set_prior = serializers.CharField(help_text="Empty: the prior is that of the settings")
    reason = serializers.CharField()
    skipped = serializers.DictField(child=serializers.IntegerField())
    kv_tokens = serializers.IntegerField(allow_null=True)
    revision = serializers.IntegerField()
    terms = TermSerializer(many=True)
    versions = VersionSerializer(many=True)


class ProfileRequest(StrictSerializer):
    """Pinned: the prior holds whatever is fitted. Both are set, as given."""

    prior = StrictText(max_length=64, required=False, default="", allow_blank=True)
    is_pinned = StrictFlag(required=False, default=False)
    reason = StrictText(max_length=500, required=False, default="", allow_blank=True)


class Profiles(Endpoint):
    """Every pool's profile."""

    @endpoint(
        operation_id="pool_profiles_list",
        query=PageQuery,
        answer=page_of(ProfileRowSerializer),
        summary="List engine profiles of pools",
    )
    def get(self, request: Request) -> Response:
        """By name of the pool."""
        require(self.user, Permission.VIEW_ALL)
        asked = self.query(PageQuery)
        page = selectors.profile_page(after=asked.get("after"), limit=asked["limit"])
        return shown_rows(ProfileRowSerializer, page.rows, page.next_after)


class PoolProfile(Endpoint):
    """One pool's profile."""

    @endpoint(
        operation_id="pool_profile_read",
        answer=ProfileSerializer,
        summary="Read a pool's engine profile",
    )
    def get(self, request: Request, name: str) -> Response:
        """Prior and fitted terms, and why the last fit was or was not taken."""
        require(self.user, Permission.VIEW_ALL)
        return shown(ProfileSerializer, selectors.profile_detail(name))

    @endpoint(
        operation_id="pool_profile_set",
        request=ProfileRequest,
        answer=ProfileSerializer,
        summary="Name a pool's prior, pin it, or let fits replace it",
    )
    def put(self, request: Request, name: str) -> Response:
        """Audited; undone by setting it back."""
        require(self.user, Permission.MANAGE_FLEET)
        asked = self.body(ProfileRequest)
        services.set_profile(pool=name, actor=actor_of(self.user), **asked)
        return shown(ProfileSerializer, selectors.profile_detail(name))
