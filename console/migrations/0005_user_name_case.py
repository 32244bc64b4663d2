from django.db import migrations, models
from django.db.models.functions import Lower


class Migration(migrations.Migration):
    """User names are unique whatever their case."""

    dependencies = [("console", "0004_kept_answers")]

    operations = [
        migrations.AddConstraint(
            model_name="user",
            constraint=models.UniqueConstraint(
                Lower("username"), name="user_name_once_in_any_case"
            ),
        )
    ]
