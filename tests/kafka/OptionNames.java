import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.storage.internals.log.LogConfig;

/**
 * Every configuration name of one Kafka: the kind it belongs to, the name, and the default; an option that must be given has none.
 * tests/data/options-VERSION.txt is what this prints, sorted.
 *
 *     java -cp "$(EMBEDLOG_ORACLE_DIR)/VERSION/lib/*" tests/kafka/OptionNames.java | sort      (needs a JDK)
 */
public class OptionNames {
    /** The definition in a class's field, the one named CONFIG first: LogConfig has one for brokers beside it. */
    static ConfigDef definition(Class<?> owner) throws Exception {
        List<Field> fields = new ArrayList<>(Arrays.asList(owner.getDeclaredFields()));
        fields.removeIf(field -> !ConfigDef.class.isAssignableFrom(field.getType()));
        fields.sort(Comparator.comparing(field -> !field.getName().equals("CONFIG")));
        fields.get(0).setAccessible(true);
        return (ConfigDef) fields.get(0).get(null);
    }

    static void print(String kind, ConfigDef definition) {
        for (ConfigDef.ConfigKey key : definition.configKeys().values()) {
            String name = kind + "\t" + key.name;
            System.out.println(key.hasDefault() ? name + "\t" + ConfigDef.convertToString(key.defaultValue, key.type) : name);
        }
    }

    public static void main(String[] arguments) throws Exception {
        print("topic", definition(LogConfig.class));
        print("broker", AbstractKafkaConfig.CONFIG_DEF);
        print("producer", ProducerConfig.configDef());
        print("consumer", ConsumerConfig.configDef());
    }
}
