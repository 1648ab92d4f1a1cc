import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import kafka.controller.ReplicaAssignment;
import kafka.zk.AdminZkClient;
import org.apache.kafka.admin.AdminUtils;
import org.apache.kafka.admin.BrokerMetadata;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Assignments of random clusters by Kafka's own AdminUtils, one JSON object per line: tests/data/placements.jsonl.xz is the output for
 * 1000 clusters and seed 15.
 *
 *     java -cp "$(EMBEDLOG_ORACLE_DIR)/3.9.1/lib/*" tests/kafka/Placements.java 1000 15 | xz -9e       (needs a JDK)
 *
 * `start` and `shift` are drawn by AdminUtils itself; its generator gets a known seed, and a second one with this seed repeats the
 * draws. With `fixed`, both are the fixed start index of the call. `added` has the partitions that a growth of the topic adds.
 */
public class Placements {
    static String joined(Map<Integer, List<Integer>> assignment) {
        return assignment.values().stream().map(each -> each.toString().replace(" ", "")).collect(Collectors.joining(",", "[", "]"));
    }

    static TreeMap<Integer, List<Integer>> added(TreeMap<Integer, List<Integer>> present, List<BrokerMetadata> brokers, int count) {
        Map<Object, ReplicaAssignment> given = new HashMap<>();
        present.forEach((number, nodes) -> {
            List<Object> boxed = new ArrayList<>(nodes);
            given.put(number, ReplicaAssignment.apply(CollectionConverters.asScala(boxed).toSeq()));
        });
        TreeMap<Integer, List<Integer>> found = new TreeMap<>();
        var whole = new AdminZkClient(null, Option.empty()).createNewPartitionsAssignment(
            "t", CollectionConverters.asScala(given), CollectionConverters.asScala(brokers).toSeq(), present.size() + count, Option.empty());
        CollectionConverters.asJava(whole).forEach((number, each) -> {
            List<Integer> nodes = new ArrayList<>();
            CollectionConverters.asJava(each.replicas()).forEach(node -> nodes.add((Integer) node));
            if (!present.containsKey((Integer) number)) found.put((Integer) number, nodes);
        });
        return found;
    }

    public static void main(String[] arguments) throws Exception {
        Random random = new Random(Long.parseLong(arguments[1]));
        Field field = AdminUtils.class.getDeclaredField("RAND");
        field.setAccessible(true);
        Random drawn = (Random) field.get(null);
        for (int number = 0; number < Integer.parseInt(arguments[0]); number++) {
            TreeSet<Integer> ids = new TreeSet<>();
            int count = 1 + random.nextInt(random.nextInt(5) == 0 ? 20 : 8);
            while (ids.size() < count) ids.add(random.nextInt(2 * count + 2));
            int rackCount = random.nextBoolean() ? 0 : 1 + random.nextInt(count);
            List<BrokerMetadata> brokers = new ArrayList<>();
            List<String> shown = new ArrayList<>();
            for (int id : ids) {
                String rack = rackCount == 0 ? null : "r" + random.nextInt(rackCount);
                brokers.add(new BrokerMetadata(id, Optional.ofNullable(rack)));
                shown.add("[" + id + "," + (rack == null ? "null" : '"' + rack + '"') + "]");
            }
            int partitions = 1 + random.nextInt(random.nextInt(4) == 0 ? 3 * count + 5 : 8), factor = 1 + random.nextInt(count);
            boolean fixed = random.nextInt(3) == 0;
            int first = random.nextInt(4) == 0 ? random.nextInt(30) : 0, seed = random.nextInt();
            drawn.setSeed(seed);
            Random repeated = new Random(seed);
            int start = fixed ? random.nextInt(count) : repeated.nextInt(count), shift = fixed ? start : repeated.nextInt(count);
            List<BrokerMetadata> mixed = new ArrayList<>(brokers);
            if (rackCount > 0) Collections.shuffle(mixed, random); // without racks the caller sorts
            var found = new TreeMap<>(AdminUtils.assignReplicasToBrokers(mixed, partitions, factor, fixed ? start : -1, first));
            String more = first == 0 ? joined(added(found, brokers, 1 + random.nextInt(6))) : "[]";
            System.out.printf("{\"nodes\":[%s],\"factor\":%d,\"start\":%d,\"shift\":%d,\"first\":%d,\"assignment\":%s,\"added\":%s}%n",
                String.join(",", shown), factor, start, shift, first, joined(found), more);
        }
    }
}
