"""Invitations of members, and an index for looking keys up by the first characters of their prefix.

All of it is new or beside what is there: old code runs on.
"""

import django.db.models.deletion
import django.db.models.functions.text
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0013_tasks_stopped_by_caps"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Invitation",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("person", models.CharField(max_length=254)),
                (
                    "role",
                    models.CharField(
                        choices=[
                            ("tenant_admin", "Tenant admin"),
                            ("tenant_viewer", "Tenant viewer"),
                        ],
                        max_length=16,
                    ),
                ),
                ("digest", models.CharField(max_length=64, unique=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("expires_at", models.DateTimeField()),
                ("accepted_at", models.DateTimeField(blank=True, null=True)),
                ("withdrawn_at", models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.AddIndex(
            model_name="apikey",
            index=models.Index(
                fields=["prefix"], name="key_by_prefix", opclasses=["varchar_pattern_ops"]
            ),
        ),
        migrations.AddField(
            model_name="invitation",
            name="invited_by",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="invitation",
            name="tenant",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="invitations",
                to="tenants.tenant",
            ),
        ),
        migrations.AddIndex(
            model_name="invitation",
            index=models.Index(
                condition=models.Q(("accepted_at", None), ("withdrawn_at", None)),
                fields=["tenant", "-id"],
                name="invitation_open_by_tenant",
            ),
        ),
        migrations.AddConstraint(
            model_name="invitation",
            constraint=models.UniqueConstraint(
                models.F("tenant"),
                django.db.models.functions.text.Lower("person"),
                condition=models.Q(("accepted_at", None), ("withdrawn_at", None)),
                name="invitation_one_open_per_person",
            ),
        ),
        migrations.AddConstraint(
            model_name="invitation",
            constraint=models.CheckConstraint(
                condition=models.Q(("role__in", ["tenant_admin", "tenant_viewer"])),
                name="invitation_role_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="invitation",
            constraint=models.CheckConstraint(
                condition=models.Q(("accepted_at", None), ("withdrawn_at", None), _connector="OR"),
                name="invitation_one_end",
            ),
        ),
    ]
